"""EC2: a GPU instance for each task, on demand or spot, with its limit held by a timer and by EventBridge."""
