package agent_test

import (
	"context"
	"crypto/tls"
	"log"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// An agent keeps a session with a server and lets it reach one port of the pods.
func ExampleAgent() {
	targets, err := agent.ParseTargets([]string{"10.0.0.0/8:8080"})
	if err != nil {
		log.Fatal(err)
	}
	a, err := agent.New(agent.Config{
		Servers: []string{"hub.example:6443"}, NodeName: "node-1", Transport: qmux.Transport(), Allow: targets,
		TLS: func(context.Context) (*tls.Config, error) { // with the node's certificate, called for each session
			return &tls.Config{MinVersion: tls.VersionTLS13}, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // Run drains then
	if err := a.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
