"""What goes on in a run: locks taken by hand, jobs, an election, requests that are repeated."""
