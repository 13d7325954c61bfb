"""The work queue: which key comes next, and when."""
