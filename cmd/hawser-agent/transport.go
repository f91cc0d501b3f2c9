// How the server is reached: the transports that --transport chooses from, what
// lies below them, and the proxy in between.

package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/net/http/httpproxy"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/overh2"
	"github.com/hawser-project/hawser/tunnel/overquic"
	"github.com/hawser-project/hawser/tunnel/overyamux"
	"github.com/hawser-project/hawser/tunnel/qmux"
)

// transports are the values of --transport and what they stand for, the default
// first. The ssh mode is none of them: it has no tunnel.
func transports() map[string]tunnel.Transport {
	table := make(map[string]tunnel.Transport)
	for _, t := range []tunnel.Transport{qmux.Transport(), overquic.Transport(), overyamux.Transport(), overh2.Transport()} {
		table[t.Name] = t
	}
	return table
}

// transportOptions are the flags about the way to the server.
type transportOptions struct {
	transport string
	flags     setup.LinkFlags
	metered   bool

	// set by check
	link tunnel.LinkOptions
}

func (o *transportOptions) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.transport, "transport", qmux.Name, "how to reach the server: qmux, whose streams outlive their connection; quic (over UDP), yamux or h2 as their libraries are; ssh: no tunnel, the server comes through this node's sshd (deprecated)")
	o.flags.Add(f)
	f.BoolVar(&o.metered, "metered", false, "save bytes: the tunnel sends keepalives ever more rarely (status and lease have flags of their own)")
}

// check refuses what cannot work, naming the flag or the variable.
func (o *transportOptions) check(servers []string) error {
	if _, ok := transports()[o.transport]; !ok && o.transport != setup.SSH {
		return fmt.Errorf("--transport %q: want qmux, quic, yamux, h2 or ssh", o.transport)
	}
	var err error
	if o.link, err = o.flags.Check(); err != nil {
		return err
	}
	o.link.Metered = o.metered
	for _, server := range servers {
		via, err := proxyFor(server)
		if err != nil {
			return err
		}
		if via != nil && o.transport == overquic.Transport().Name {
			return fmt.Errorf("--transport quic: %s is behind proxy %s, which cannot carry it: use qmux, or put the server into NO_PROXY", server, via.Host)
		}
	}
	return nil
}

// proxyFor is the proxy that the environment has for server, HOST:PORT; nil if
// there is none.
func proxyFor(server string) (*url.URL, error) {
	env := httpproxy.FromEnvironment()
	text := env.HTTPSProxy
	if text != "" && !strings.Contains(text, "://") {
		text = "http://" + text
	}
	_, err := url.Parse(text) // what is no URL would be taken for no proxy
	var via *url.URL
	if err == nil {
		via, err = env.ProxyFunc()(&url.URL{Scheme: "https", Host: server})
	}
	if err != nil {
		// The error has the variable's value in it, and that a password.
		return nil, errors.New("HTTPS_PROXY is no URL: want http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, with what is special in them percent-encoded")
	}
	if via == nil {
		return nil, nil //nolint:nilnil // documented
	}
	if err := agent.CheckProxy(via); err != nil {
		return nil, fmt.Errorf("HTTPS_PROXY: %w", err)
	}
	return via, nil
}

// proxied tells which servers are reached through a proxy, for the log.
func proxied(servers []string) string {
	var out []string
	for _, s := range servers {
		if via, err := proxyFor(s); err == nil && via != nil {
			out = append(out, s+" through "+via.Host)
		}
	}
	return strings.Join(out, ", ")
}
