"""People: subjects, consents, enrolment and erasure."""
