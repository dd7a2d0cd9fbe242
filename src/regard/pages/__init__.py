"""HTML and SVG building blocks, shared by the reports, the studies, `approximate` and the pictures of `look`."""
