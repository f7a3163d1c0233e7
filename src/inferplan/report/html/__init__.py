"""Answers as pages: one file each, without network. Knows how a page is made up and which page each answer has, and computes no figure."""
