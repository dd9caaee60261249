"""Values that several packages of the device share."""
