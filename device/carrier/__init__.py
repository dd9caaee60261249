"""The network's side: what palm-syncd fetches and brings, and where the core takes it in."""
