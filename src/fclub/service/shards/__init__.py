"""One site as several local servers behind one port."""
