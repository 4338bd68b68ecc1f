"""What leaves a server, when, with which noise, who charged it, and what comes back."""
