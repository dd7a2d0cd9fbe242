// The passage that a view opened with: another run replaces it by its own.
export const offered = { run: "", text: "", target: "", heldOut: false };
