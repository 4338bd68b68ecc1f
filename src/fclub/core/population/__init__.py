"""The population of tastes: contributions of users, the filter of releases, serving."""
