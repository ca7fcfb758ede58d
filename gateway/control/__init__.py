"""What control decides and keeps going: releases, rollouts, updates, and who follows them."""
