"""Is an optimizer right, and if not, what is wrong?"""
