package server_test

import (
	"context"
	"log"
	"net/http"

	"github.com/hawser-project/hawser/server"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

// A Hub's DialContext can be used in an HTTP client.
func ExampleHub() {
	var agents tunneltest.Exchange // in place of a listener on the network
	hub, err := server.New(server.Config{Listeners: []tunnel.Listener{agents.Listen("hub:1")}})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _ = hub.Run(ctx) }() // until ctx is done
	client := &http.Client{Transport: &http.Transport{DialContext: hub.DialContext}}
	resp, err := client.Get("http://node-1:8080/healthz")
	switch tunnel.CodeOf(err) {
	case tunnel.NoNode:
		log.Print("node-1 has no session")
	case tunnel.Refused:
		log.Print("nobody listens there")
	}
	if err == nil {
		_ = resp.Body.Close()
	}
}
