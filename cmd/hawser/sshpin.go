// hawser ssh: the host keys of nodes that the server reaches through their sshd.

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/hawser-project/hawser/auth/hostkeys"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/node"
)

// hostKeys are the flags of hawser ssh.
type hostKeys struct {
	sshOptions
	dataDir     string
	kubeconfig  string
	address     string
	fingerprint string
}

func newSSH() *cobra.Command {
	var o hostKeys
	ssh := &cobra.Command{
		Use: "ssh", Short: "Host keys of nodes that are reached through their sshd (deprecated mode)",
		Args: cobra.NoArgs, // see newToken
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	pin := &cobra.Command{
		Use:   "pin NODE",
		Short: "Show a node's host key, and make it the one that the server accepts",
		Long: "Asks the node's sshd for its host key and shows the fingerprint. Once you have compared it with what\n" +
			"the node itself says, the key is pinned: a running server uses it at once, and accepts no other.\n" +
			"Run it where the server runs, as the user that it runs as.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.fingerprint == "" {
				// Nothing is under way while somebody is asked: let an interrupt end it.
				signal.Reset(setup.StopSignals()...)
			}
			return o.pin(cmd.Context(), args[0], cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f := pin.Flags()
	f.StringVar(&o.fingerprint, "fingerprint", "", "pin the key with this fingerprint, SHA256:…, without asking")
	f.StringVar(&o.address, "address", "", "address of the node's sshd, HOST or HOST:PORT (default the node's InternalIP)")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig by which to find the InternalIP (default "+adminKubeconfig+" in --data-dir, then $KUBECONFIG)")
	unpin := &cobra.Command{
		Use: "unpin NODE", Short: "Forget a node's host key: the server reaches it no more", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.unpin(args[0], cmd.OutOrStdout()) },
	}
	list := &cobra.Command{
		Use: "list", Short: "Show the pinned host keys", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.list(cmd.OutOrStdout()) },
	}
	p := ssh.PersistentFlags()
	p.StringVar(&o.dataDir, "data-dir", setup.ServerDir, "data directory of the server")
	o.addHostFlags(p)
	ssh.AddCommand(pin, unpin, list)
	return ssh
}

// open reads the file of keys.
func (o *hostKeys) open() (*hostkeys.File, error) {
	if err := o.check(o.dataDir); err != nil {
		return nil, err
	}
	return hostkeys.Open(o.knownHosts, setup.NewLogger("text", 0))
}

// mayChange refuses root in the directory of somebody else, whose server could not read a
// file of root's.
func (o *hostKeys) mayChange() error {
	dir := filepath.Dir(o.knownHosts)
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("host keys: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 || st.Uid == 0 {
		return nil
	}
	owner := "'#" + strconv.Itoa(int(st.Uid)) + "'" // as sudo has a user without a name
	if u, err := user.LookupId(strconv.Itoa(int(st.Uid))); err == nil {
		owner = u.Username
	}
	return fmt.Errorf("host keys: %s belongs to user %d, whose server could not read what root writes there: run this as that user (sudo -u %s hawser ssh …)", dir, st.Uid, owner)
}

// change has f change the file, while no other command does.
func (o *hostKeys) change(f func() error) error {
	if err := o.mayChange(); err != nil {
		return err
	}
	unlock, err := setup.Lock(filepath.Dir(o.knownHosts), "."+filepath.Base(o.knownHosts)+".lock")
	if err != nil {
		return fmt.Errorf("host keys: %w", err)
	}
	defer unlock()
	return f()
}

// pin shows which key the node shows, has it confirmed, and keeps it.
func (o *hostKeys) pin(ctx context.Context, name string, in io.Reader, out io.Writer) error {
	name, err := node.ParseName(name)
	if err != nil {
		return err
	}
	keys, err := o.open()
	if err != nil {
		return err
	}
	if err = o.mayChange(); err != nil { // before anybody is asked
		return err
	}
	addr, err := o.addressOf(ctx, name)
	if err != nil {
		return err
	}
	pinned, err := keys.Pinned(name)
	if err != nil {
		return err
	}
	for _, k := range pinned {
		if _, err = fmt.Fprintf(out, "pinned for %s: %s\n", name, k); err != nil {
			return err
		}
	}
	key, err := o.confirmed(ctx, name, addr, in, out)
	if err != nil {
		return err
	}
	if err = o.change(func() error { return keys.Pin(name, key) }); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "pinned for %s from now on: %s\n", name, key)
	return err
}

// confirmed is the key of the sshd at addr that the administrator vouches for.
func (o *hostKeys) confirmed(ctx context.Context, name, addr string, in io.Reader, out io.Writer) (hostkeys.Key, error) {
	if o.fingerprint != "" && !strings.HasPrefix(o.fingerprint, "SHA256:") {
		return hostkeys.Key{}, fmt.Errorf("--fingerprint %q: want SHA256:…, as ssh-keygen -l prints it", o.fingerprint)
	}
	vouched := func(k hostkeys.Key) bool { return o.fingerprint == "" || k.Fingerprint() == o.fingerprint }
	keys, err := hostkeys.Scan(ctx, addr, vouched)
	if len(keys) == 0 {
		return hostkeys.Key{}, err
	}
	if key := keys[len(keys)-1]; o.fingerprint != "" && vouched(key) {
		return key, nil
	}
	switch {
	case o.fingerprint != "" && err != nil:
		return hostkeys.Key{}, fmt.Errorf("%s has not shown host key %s: it shows %v, and then: %w", addr, o.fingerprint, keys, err)
	case o.fingerprint != "":
		return hostkeys.Key{}, fmt.Errorf("%s has no host key %s: it shows %v", addr, o.fingerprint, keys)
	}
	key := keys[0]
	if _, err = fmt.Fprintf(out, "The sshd of %s at %s shows\n  %s\nOn the node, compare that with what this prints:\n  ssh-keygen -lf %s\nPin it? Type yes, or the fingerprint that the node prints: ",
		name, addr, key, keyFileOf(key.Type())); err != nil {
		return key, err
	}
	answer, err := bufio.NewReader(io.LimitReader(in, 4096)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return key, fmt.Errorf("read the answer: %w", err)
	}
	switch answer = strings.TrimSpace(answer); answer {
	case "yes", key.Fingerprint():
		return key, nil
	case "":
		return key, errors.New("nothing was pinned, nobody said yes: without a terminal give --fingerprint SHA256:…")
	default:
		return key, fmt.Errorf("nothing was pinned: %q is neither yes nor the fingerprint shown", answer)
	}
}

// keyFileOf is where OpenSSH keeps the host key of a type.
func keyFileOf(keyType string) string {
	kind := strings.TrimPrefix(keyType, "ssh-")
	if strings.HasPrefix(kind, "ecdsa") {
		kind = "ecdsa"
	}
	return "/etc/ssh/ssh_host_" + kind + "_key.pub"
}

// addressOf is where the sshd of the node of a name listens.
func (o *hostKeys) addressOf(ctx context.Context, name string) (string, error) {
	port := strconv.Itoa(o.port)
	if o.address != "" {
		if _, _, err := net.SplitHostPort(o.address); err == nil {
			return o.address, nil
		}
		return net.JoinHostPort(o.address, port), nil
	}
	file := o.kubeconfig
	if beside := filepath.Join(o.dataDir, adminKubeconfig); file == "" {
		if _, err := os.Stat(beside); err == nil {
			file = beside
		}
	}
	rc, err := loadKubeconfig(file)
	if err != nil {
		return "", fmt.Errorf("find the address of %s (or give --address): %w", name, err)
	}
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("find the address of %s (or give --address): %w", name, err)
	}
	ips := internalIPs(n)
	if len(ips) == 0 {
		return "", fmt.Errorf("node %s has no InternalIP: give --address", name)
	}
	return net.JoinHostPort(ips[0], port), nil
}

func (o *hostKeys) unpin(name string, out io.Writer) error {
	keys, err := o.open()
	if err != nil {
		return err
	}
	return o.change(func() error {
		pinned, err := keys.Pinned(name)
		if err != nil {
			return err
		}
		if len(pinned) == 0 {
			return fmt.Errorf("no host key is pinned for %q in %s: hawser ssh list shows those that are", name, o.knownHosts)
		}
		if err = keys.Unpin(name); err != nil {
			return err
		}
		_, err = fmt.Fprintf(out, "no host key is pinned for %s any more\n", name)
		return err
	})
}

func (o *hostKeys) list(out io.Writer) error {
	keys, err := o.open()
	if err != nil {
		return err
	}
	pins, err := keys.List()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NODE\tTYPE\tFINGERPRINT")
	for _, p := range pins {
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.Name, p.Key.Type(), p.Key.Fingerprint())
	}
	return w.Flush()
}
