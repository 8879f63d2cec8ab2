"""Advantages, losses and KL terms: from rewards to the number that is differentiated."""
