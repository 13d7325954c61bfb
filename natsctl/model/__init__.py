"""What is kept, and where: objects, their kinds, selectors, and the store seam."""
