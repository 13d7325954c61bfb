"""Objects, their kinds, selectors, and the seams between natsctl and its stores."""
