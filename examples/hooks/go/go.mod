module example.com/shops-hook

go 1.22

require github.com/nats-io/nats.go v1.37.0
