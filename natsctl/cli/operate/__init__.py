"""Commands that ask a running daemon or act for one."""
