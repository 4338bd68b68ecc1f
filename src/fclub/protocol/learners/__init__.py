"""What servers know of their users and how they serve them. No module here knows messages."""
