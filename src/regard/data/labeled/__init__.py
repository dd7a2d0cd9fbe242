"""Labelled text: classes of texts, tags of words and answers in passages."""
