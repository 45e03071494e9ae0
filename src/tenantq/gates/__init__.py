"""The gates between transports and engine, one file each: authentication, authorization, rates and slots."""
