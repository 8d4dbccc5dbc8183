"""What runs inside the watched program's processes. Nothing here prints, and nothing changes a result."""
