// Flags of konnectivity-server, for those who come from it: what has a counterpart is
// taken for that, and what has none is refused in a line that says why.

package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// modeFlag says which front end konnectivity's flags about one mean.
const modeFlag = "mode"

// An alias is a flag of konnectivity-server.
type alias struct {
	name string
	ours string // "" if there is none; KIND is the front end's
	why  string // there is none
	so   string // the value that says what is so here; it is taken, and changes nothing
}

// aliases are all of them that hawser server has no flag of its own for. The list is
// written here once and never changed.
var aliases = []alias{
	{name: "uds-name", ours: "KIND-uds"},
	{name: "server-port", ours: "KIND-port"},
	{name: "server-bind-address", ours: "bind-address"},
	{name: "agent-port", ours: "secure-port"},
	{name: "agent-bind-address", ours: "bind-address"},
	{name: "delete-existing-uds-file", so: "true", why: "a socket that nobody listens on is always replaced"},
	{name: "server-cert", why: certificatesAreMade},
	{name: "server-key", why: certificatesAreMade},
	{name: "server-ca-cert", why: certificatesAreMade},
	{name: "cluster-cert", ours: "tls-cert-file"},
	{name: "cluster-key", ours: "tls-private-key-file"},
	{name: "cluster-ca-cert", ours: "agent-ca"},
	{name: "frontend-keepalive-time", why: "clients may ping as they like"},
	{name: "keepalive-time", why: "--link-keepalive is in seconds where that is in hours"},
	{name: "cipher-suites", why: "TLS 1.3 has no weak ones to leave out"},
	{name: "tls-min-version", so: "VersionTLS13", why: "it is TLS 1.3"},
	{name: "agent-namespace", why: agentsHaveCertificates},
	{name: "agent-service-account", why: agentsHaveCertificates},
	{name: "authentication-audience", why: agentsHaveCertificates},
	{name: "kubeconfig-qps", why: "no tokens are reviewed"},
	{name: "kubeconfig-burst", why: "no tokens are reviewed"},
	{name: "kube-api-content-type", why: "no tokens are reviewed"},
	{name: "server-count", why: serversAreNamed},
	{name: "enable-lease-controller", so: "false", why: serversAreNamed},
	{name: "lease-namespace", why: serversAreNamed},
	{name: "lease-label", why: serversAreNamed},
	{name: "proxy-strategies", so: "destHost", why: "a dial goes to the node that it names, or that --route-through says"},
	{name: "xfr-channel-size", why: "each connection has its own window"},
	{name: "frontend-write-channel-size", why: "each connection has its own window"},
	{name: "warn-on-channel-limit", so: "true", why: "each connection has its own window"},
	{name: "backend-dial-timeout", why: "a dial is always bounded"},
	{name: "admin-port", why: healthIsElsewhere},
	{name: "admin-bind-address", why: healthIsElsewhere},
	{name: "health-bind-address", why: healthIsElsewhere},
	{name: "enable-profiling", so: "false", why: "administrators find /debug/pprof at --secure-port"},
	{name: "enable-contention-profiling", so: "false", why: "contention is not profiled"},
}

// logFlags are those of klog, which konnectivity's examples set. They are taken with a
// warning: they change no stream.
var logFlags = []string{
	"add-dir-header", "alsologtostderr", "legacy-stderr-threshold-behavior", "logtostderr", "one-output", "skip-headers", "skip-log-headers",
	"log-backtrace-at", "log-dir", "log-file", "log-file-max-size", "alsologtostderrthreshold", "stderrthreshold", "vmodule",
}

// switches are how many of the logFlags, from the first, need no value.
const switches = 7

const (
	healthIsElsewhere      = "/readyz and /metrics are on --secure-port, and on --health-port with --kubeconfig, at --bind-address"
	certificatesAreMade    = "keys and certificates are made in DATA-DIR/pki"
	serversAreNamed        = "an agent has the list of its servers (--server) and counts none"
	agentsHaveCertificates = "agents prove themselves by certificates, for which they get a join token (hawser token create)"
)

// addAliases adds hidden flags.
func addAliases(f *pflag.FlagSet) {
	add := func(name string) {
		_ = f.String(name, "", "konnectivity-server's")
		f.Lookup(name).Hidden = true
	}
	add(modeFlag)
	for _, a := range aliases {
		add(a.name)
		if _, err := strconv.ParseBool(a.so); a.ours == "" && (a.so == "" || err == nil) { // it is refused with a value and without
			f.Lookup(a.name).NoOptDefVal = "true"
		}
	}
	for i, name := range logFlags {
		add(name)
		if i < switches {
			f.Lookup(name).NoOptDefVal = "true"
		}
		_ = f.MarkDeprecated(name, "it has no counterpart here: the log is on standard error, and --v is its verbosity") // it fails only if there is no such flag
	}
}

// aliasHelp is the table for people.
func aliasHelp() string {
	var b strings.Builder
	b.WriteString("Of konnectivity-server's flags these are taken as well (KIND is konnectivity, or connect with --mode http-connect):\n")
	for _, a := range aliases {
		if a.ours != "" {
			fmt.Fprintf(&b, "  --%-22s --%s\n", a.name, a.ours)
		}
	}
	b.WriteString("Its other flags have no counterpart: one of them is an error that says why, unless it says what is so\n")
	b.WriteString("anyway, such as --delete-existing-uds-file. Flags of its log are a warning.")
	return b.String()
}

// applyAliases sets what the aliases that were given stand for.
func applyAliases(f *pflag.FlagSet) error {
	kind := "konnectivity"
	switch mode := f.Lookup(modeFlag).Value.String(); mode {
	case "", protoGRPC:
	case protoConnect:
		kind = "connect"
	default:
		return fmt.Errorf("--%s %q: want %s or %s", modeFlag, mode, protoGRPC, protoConnect)
	}
	for _, a := range aliases {
		given := f.Lookup(a.name)
		if !given.Changed {
			continue
		}
		if a.ours == "" && a.so != "" && given.Value.String() == a.so {
			continue
		}
		if a.ours == "" {
			return fmt.Errorf("--%s of konnectivity-server has no counterpart here, leave it out: %s", a.name, a.why)
		}
		ours, value := strings.ReplaceAll(a.ours, "KIND", kind), given.Value.String()
		if o := f.Lookup(ours); o.Changed && o.Value.String() != value {
			return fmt.Errorf("--%s %s and --%s %s mean the same: say one of them", a.name, value, ours, o.Value.String())
		}
		if err := f.Set(ours, value); err != nil {
			return fmt.Errorf("--%s: %w", a.name, err)
		}
	}
	return nil
}
