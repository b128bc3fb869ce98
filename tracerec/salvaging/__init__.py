"""What can still be read of a recording that is damaged: opened piece by piece, where a reader refuses the whole."""
