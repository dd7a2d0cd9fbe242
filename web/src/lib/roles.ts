// What the roles of heads mean, for tooltips and captions (src/regard/look/statistics/measures.py).
export const ROLES: Record<string, string> = {
  previous: "attends to the previous token",
  self: "attends to the token itself",
  sink: "attends to the first token, where attention goes that is needed nowhere else",
  induction: "attends to the token after an earlier occurrence of the current token, and so continues repetitions",
  positional: "attends at fixed positions, whatever the tokens are",
  duplicate: "attends to earlier occurrences of the current token",
  recent: "attends a few tokens back",
  even: "attends to all keys about equally",
  idle: "has no measurable effect: removing it does not change the loss of this text",
  end: "attends to the last token of the source",
  diagonal: "attends to the source at the same relative position",
  mixed: "fits no single role",
};

export const describeRole = (role: string): string => (ROLES[role] ? `${role}: ${ROLES[role]}` : role);
