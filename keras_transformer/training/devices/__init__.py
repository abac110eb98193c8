"""The devices and processes that train a model: one file for each backend, upon `base`."""
