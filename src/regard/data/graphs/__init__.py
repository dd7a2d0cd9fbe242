"""Graphs: classes of nodes, links between them, and values of whole graphs such as molecules."""
