"""Gates without hardware, for developers of back offices: they speak to a server as devices do."""
