"""One file a library that tracerec works with. Each imports its library; nothing else imports them."""
