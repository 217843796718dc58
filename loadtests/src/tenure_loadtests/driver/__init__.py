"""The process that a person starts: it has the servers, starts one contender at a time, and keeps what they answer."""
