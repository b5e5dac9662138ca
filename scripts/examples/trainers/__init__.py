"""One training with each library: small, exact to resume, and run by the tests.

Each module has `train(loader, folder, epochs, after_step)`. Called again after any crash, with a loader made in the
same way, it goes on where its last checkpoint in `folder` was written.
"""
