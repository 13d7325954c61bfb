"""HTTP requests to a kube-apiserver."""
