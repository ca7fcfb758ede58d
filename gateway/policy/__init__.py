"""PURE. Which places a request may go to, which policy applies, and what that policy requires."""
