"""Values that several rooms of the device share, and no room owns."""
