package main

import (
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestTransportOptions: what the flags say reaches the link.
func TestTransportOptions(t *testing.T) {
	o, err := parse(t, "--metered", "--detach-window", "2m", "--link-keepalive", "30s", "--tcp-congestion", "system")
	if err != nil {
		t.Fatal(err)
	}
	if l := o.link; !l.Metered || l.DetachWindow != 2*time.Minute || l.Keepalive != 30*time.Second || l.Congestion != "system" {
		t.Errorf("got %+v", l)
	}
}

// TestTransports: each is known by its name, and the default is the one that resumes.
func TestTransports(t *testing.T) {
	for _, name := range []string{"qmux", "quic", "yamux", "h2"} {
		if tr := transports()[name]; tr.Name != name || tr.Dial == nil {
			t.Errorf("%s is %+v", name, tr)
		}
	}
	o, err := parse(t)
	if err != nil {
		t.Fatal(err)
	}
	if tr := transports()[o.transport]; o.transport != "qmux" || !tr.Can.Resume || !tr.Can.Migrate {
		t.Errorf("the default is %q: %+v", o.transport, tr.Can)
	}
	if _, err = parse(t, "--transport", "auto"); err == nil || !strings.Contains(err.Error(), "want qmux, quic, yamux, h2 or ssh") {
		t.Errorf("auto: %v", err)
	}
}

func TestProxyFromEnvironment(t *testing.T) {
	for name, tt := range map[string]struct {
		https, no string
		server    string
		want      string // host of the proxy; empty means none
		err       string
	}{
		"none":           {server: "hub.example:6443"},
		"proxy":          {https: "http://u:p@proxy.example:3128", server: "hub.example:6443", want: "proxy.example:3128"},
		"without scheme": {https: "proxy.example:3128", server: "hub.example:6443", want: "proxy.example:3128"},
		"excepted":       {https: "http://proxy.example:3128", no: ".example,10.0.0.0/8", server: "hub.example:6443"},
		"excepted range": {https: "http://proxy.example:3128", no: "10.0.0.0/8", server: "10.1.2.3:6443"},
		"other port":     {https: "http://proxy.example:3128", no: "hub.example:443", server: "hub.example:6443", want: "proxy.example:3128"},
		"IPv6":           {https: "http://proxy.example:3128", server: "[fd00::1]:6443", want: "proxy.example:3128"},
		"this machine":   {https: "http://proxy.example:3128", server: "127.0.0.1:6443"},
		"socks":          {https: "socks5://u:s3same@proxy.example:1080", server: "hub.example:6443", err: `scheme "socks5" is not supported`},
		"nonsense":       {https: "http://u:s3same@proxy.example:port", server: "hub.example:6443", err: "HTTPS_PROXY is no URL"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, v := range []string{"https_proxy", "no_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
				t.Setenv(v, "")
			}
			t.Setenv("HTTPS_PROXY", tt.https)
			t.Setenv("NO_PROXY", tt.no)
			got, err := proxyFor(tt.server)
			switch {
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err) || strings.Contains(err.Error(), "s3same")):
				t.Errorf("got %v, want %q", err, tt.err)
			case tt.err == "" && err != nil:
				t.Error(err)
			case (got == nil) != (tt.want == "") || got != nil && got.Host != tt.want:
				t.Errorf("through %v, want %q", redacted(got), tt.want)
			}
			if tt.err != "" {
				if _, err := parse(t, "--server", "https://"+tt.server); err == nil || strings.Contains(err.Error(), "\n") {
					t.Errorf("at the start: %v", err)
				}
			}
		})
	}
}

func redacted(u *url.URL) string {
	if u == nil {
		return "none"
	}
	return u.Redacted()
}

// TestQUICNeedsNoProxy: what cannot work is said at the start.
func TestQUICNeedsNoProxy(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy.example:3128")
	t.Setenv("NO_PROXY", "")
	if _, err := parse(t, "--transport", "quic"); err == nil || !strings.Contains(err.Error(), "proxy.example:3128") {
		t.Errorf("quic behind a proxy: %v", err)
	}
	if _, err := parse(t); err != nil {
		t.Errorf("qmux behind a proxy: %v", err)
	}
	if got := proxied([]string{"hub.example:6443", "127.0.0.1:6443"}); got != "hub.example:6443 through proxy.example:3128" {
		t.Errorf("proxied: %q", got)
	}
}
