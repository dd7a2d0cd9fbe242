"""The checks of this library; every file here is imported by ``regard.doctor.check.all_checks``."""
