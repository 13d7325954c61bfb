"""Objects in a Kubernetes cluster: access, HTTP, resources, watches, and stores."""
