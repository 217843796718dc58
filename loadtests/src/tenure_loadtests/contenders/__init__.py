"""The contenders: each module drives one library, floor or program in the way that its documentation tells."""
