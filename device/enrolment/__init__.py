"""Functions for people at the device: enrolment, consent, preview, a supervised passage."""
