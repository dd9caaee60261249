"""A person at the device: enrolment, consent, preview, a supervised passage."""
