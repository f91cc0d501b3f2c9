package setup

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-project/hawser/tunnel"
)

func TestLinkFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		args string
		want tunnel.LinkOptions
		err  string // in the error; empty means none
	}{
		"defaults":        {"", tunnel.LinkOptions{DetachWindow: time.Minute, Keepalive: 14 * time.Second, Congestion: "auto", Connections: 16}, ""},
		"no window":       {"--detach-window 0", tunnel.LinkOptions{DetachWindow: -1, Keepalive: 14 * time.Second, Congestion: "auto", Connections: 16}, ""},
		"all":             {"--detach-window 5m --link-keepalive 30s --tcp-congestion cubic --connections 4", tunnel.LinkOptions{DetachWindow: 5 * time.Minute, Keepalive: 30 * time.Second, Congestion: "cubic", Connections: 4}, ""},
		"negative window": {"--detach-window -1s", tunnel.LinkOptions{}, "--detach-window -1s"},
		"short window":    {"--detach-window 10ms", tunnel.LinkOptions{}, "--detach-window 10ms"},
		"long window":     {"--detach-window 25h", tunnel.LinkOptions{}, "--detach-window 25h"},
		"keepalive":       {"--link-keepalive 0", tunnel.LinkOptions{}, "--link-keepalive 0s"},
		"no connection":   {"--connections 0", tunnel.LinkOptions{}, "--connections 0"},
		"too many":        {"--connections 65", tunnel.LinkOptions{}, "--connections 65"},
		"congestion":      {"--tcp-congestion ../bbr", tunnel.LinkOptions{}, `--tcp-congestion "../bbr"`},
	} {
		t.Run(name, func(t *testing.T) {
			var l LinkFlags
			f := pflag.NewFlagSet("x", pflag.ContinueOnError)
			l.Add(f)
			if err := f.Parse(strings.Fields(tt.args)); err != nil {
				t.Fatal(err)
			}
			got, err := l.Check()
			if !reflect.DeepEqual(got, tt.want) || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %+v, %v; want %+v, %q", got, err, tt.want, tt.err)
			}
		})
	}
}
