// hawser diag: a bundle of what somebody needs who is to find out what is wrong, without what
// is secret.

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/cmd/internal/explain"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/controlplane/apiserver"
	"github.com/hawser-project/hawser/controlplane/apiserver/kubelet"
	hubs "github.com/hawser-project/hawser/controlplane/servers"
)

const (
	// diagItem bounds one file of a bundle: what is longer is cut, and the summary says so.
	diagItem = 64 << 20
	// diagWait bounds the wait for one file, and diagTime that for all.
	diagWait = 30 * time.Second
	diagTime = 10 * time.Minute
	// diagNodes is how many nodes are asked by themselves at most.
	diagNodes = 10
)

// A diagFile is a file of a bundle: what the API has at a path.
type diagFile struct{ name, path, query string }

// processFiles are those of a server or of a hub beside a cluster.
var processFiles = []diagFile{
	{"config.json", "/configz", ""},
	{"ready.txt", "/readyz", "verbose"},
	{"metrics.txt", "/metrics", ""},
	{"goroutines.txt", "/debug/pprof/goroutine", "debug=1"},
	{"heap.pb.gz", "/debug/pprof/heap", ""},
	{"trace.out", "/debug/pprof/trace", "seconds=5"},
	{sessionsFile, apiserver.StatusPath + "fleet", ""},
}

// sessionsFile is what the status page shows. It is a stream that begins with all nodes: as
// much of it is read as comes in sessionsTime.
const (
	sessionsFile = "sessions.ndjson"
	sessionsTime = 2 * time.Second
)

// versionFile is read first: who has the API tells its version whatever else it cannot do.
var versionFile = diagFile{"server/version.json", "/version", ""}

// apiFiles are those of the API. None has a Secret, a ConfigMap or a pod in it.
var apiFiles = []diagFile{
	{"fleet/nodes.json", "/api/v1/nodes", ""},
	{"fleet/leases.json", "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases", ""},
	{"fleet/servers.json", "/apis/coordination.k8s.io/v1/namespaces/" + hubs.Namespace + "/leases", ""},
	{"fleet/leaders.json", "/apis/coordination.k8s.io/v1/namespaces/" + metav1.NamespaceSystem + "/leases", ""},
	{"fleet/events.json", "/api/v1/events", "fieldSelector=" + url.QueryEscape("involvedObject.kind=Node") + "&limit=5000"},
	{"fleet/requests.json", "/apis/certificates.k8s.io/v1/certificatesigningrequests", "limit=500"},
}

// nodeFiles are those of one node, through its tunnel.
var nodeFiles = []diagFile{
	{"health.txt", "healthz", ""},
	{"config.json", "configz", ""},
	{"metrics.txt", "metrics", ""},
	{"stats.json", "stats/summary", ""},
	{"goroutines.txt", "debug/pprof/goroutine", "debug=1"},
	{"heap.pb.gz", "debug/pprof/heap", ""},
}

func newDiag() *cobra.Command {
	var kubeconfig, output, hubURL string
	var nodes []string
	cmd := &cobra.Command{
		Use:   "diag",
		Short: "Gather what is needed to find out what is wrong, without secrets, into one file",
		Long: "Gathers into a .tar.gz what is needed to find out what is wrong: explain fleet, version, flags, health, metrics,\n" +
			"goroutines, memory, sessions and five seconds of execution trace of the server, or also of the hub beside it, Nodes,\n" +
			"Leases, events about nodes and certificate requests, and of some nodes, through their tunnels, flags, health, metrics,\n" +
			"stats, goroutines and memory of the agent. No Secret or pod is read, and no ConfigMap but the one with the hub's\n" +
			"authority. Annotations that are not Kubernetes' or Hawser's, and what looks like a token, a password or a private key,\n" +
			"are taken out of texts. What cannot be had is told in summary.txt. The server must answer: if it does not, send its log.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(nodes) > diagNodes {
				return fmt.Errorf("--node: %d are named, at most %d are asked", len(nodes), diagNodes)
			}
			rc, err := loadKubeconfig(kubeconfig)
			if err != nil {
				return err
			}
			client, err := kubernetes.NewForConfig(rc)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), diagTime)
			defer cancel()
			if err = checkNodes(ctx, client, nodes); err != nil {
				return err
			}
			servers := map[string]rest.Interface{"server": client.Discovery().RESTClient()}
			if hubURL != "" {
				if servers["hub"], err = metricsOf(ctx, client, rc, hubURL); err != nil {
					return err
				}
			}
			if output == "" {
				output = "hawser-diag-" + time.Now().UTC().Format("20060102T150405Z") + ".tar.gz"
			}
			return writeBundle(output, func(w io.Writer) error {
				return gatherBundle(ctx, w, cmd.ErrOrStderr(), servers, rc, nodes)
			}, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&output, "output", "", "file to write, which must not be there (default hawser-diag-TIME.tar.gz)")
	cmd.Flags().StringSliceVar(&nodes, "node", nil, fmt.Sprintf("nodes to gather from, at most %d (default those that explain fleet names as broken)", diagNodes))
	hubFlag(cmd, &hubURL)
	kubeconfigFlag(cmd, &kubeconfig)
	// It fails only for a flag that is not there, or twice.
	_ = cmd.RegisterFlagCompletionFunc("node", completeNames(&kubeconfig, 0, nodeNames))
	return cmd
}

// checkNodes refuses what is no name of a node, and names that the API does not know, if it can tell.
func checkNodes(ctx context.Context, client kubernetes.Interface, nodes []string) error {
	for _, name := range nodes {
		if err := auth.CheckNodeName(name); err != nil {
			return fmt.Errorf("--node: %w", err)
		}
	}
	for _, name := range nodes {
		bounded, cancel := context.WithTimeout(ctx, diagWait)
		_, err := client.CoreV1().Nodes().Get(bounded, name, metav1.GetOptions{})
		cancel()
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("--node %q: there is no such node: hawser kubectl get nodes lists them", name)
		case err != nil:
			return nil //nolint:nilerr // an API that is sick is gathered from
		}
	}
	return nil
}

// writeBundle has f write a new file that nobody else may read, and takes it away if f fails.
func writeBundle(file string, f func(io.Writer) error, out io.Writer) (err error) {
	w, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	if err = errors.Join(f(w), w.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	_, err = fmt.Fprintln(out, file)
	return err
}

// A bundle is a compressed archive, and what is to be said of it.
type bundle struct {
	tar     *tar.Writer
	now     time.Time
	files   int // in it so far
	missing int // could not be had
	summary bytes.Buffer
	show    io.Writer // progress
}

// gatherBundle gathers from servers, of which "server" has the API. What the API cannot tell
// of the fleet is told in the summary: then the server is what is to be looked at.
func gatherBundle(ctx context.Context, out, progress io.Writer, servers map[string]rest.Interface, rc *rest.Config, nodes []string) error {
	zip := gzip.NewWriter(out)
	b := &bundle{tar: tar.NewWriter(zip), now: time.Now(), show: progress}
	fmt.Fprintf(&b.summary, "hawser %s, %s\n", setup.Version(), b.now.UTC().Format(time.RFC3339))
	api := servers["server"]
	broken, sick, err := b.explain(ctx, rc)
	if err == nil {
		err = b.fetch(ctx, api, versionFile)
	}
	switch {
	case err != nil:
		return err
	case sick != nil && b.files == 0:
		return fmt.Errorf("the server tells nothing: %w", withRemedy(plainly(sick)))
	case len(nodes) == 0:
		nodes = broken
	}
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(servers))) {
		for _, f := range processFiles {
			f.name = path.Join(name, f.name)
			if err = b.fetch(ctx, servers[name], f); err != nil {
				return err
			}
		}
	}
	for _, f := range apiFiles {
		if err = b.fetch(ctx, api, f); err != nil {
			return err
		}
	}
	for _, node := range nodes {
		if err = b.askNode(ctx, api, node); err != nil {
			return err
		}
	}
	if b.missing > 0 {
		fmt.Fprintf(b.show, "%d of %d files could not be had: see summary.txt\n", b.missing, b.missing+b.files)
	}
	return errors.Join(b.add("summary.txt", b.summary.Bytes()), b.tar.Close(), zip.Close())
}

// explain adds the verdict on the fleet, and names the first nodes that are broken. sick is why
// there is no verdict; err is fetch's.
func (b *bundle) explain(ctx context.Context, rc *rest.Config) (broken []string, sick, err error) {
	bounded, cancel := context.WithTimeout(ctx, diagWait+maxHear)
	defer cancel()
	var text bytes.Buffer
	sick = explainFleet(bounded, &text, rc, explainFlags{grace: explain.DefaultGrace, output: "json", notes: io.Discard})
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, nil, context.Cause(ctx)
	}
	if sick != nil {
		b.missing++
		fmt.Fprintf(&b.summary, "fleet/explain.json is not here: %s\n", setup.Printable(sick.Error()))
		return nil, sick, nil
	}
	var fleet explain.Fleet
	if err := json.Unmarshal(text.Bytes(), &fleet); err != nil {
		return nil, nil, err
	}
	for _, g := range fleet.Groups {
		broken = append(broken, g.Names...)
	}
	var page bytes.Buffer
	if err := fleet.WriteText(&page); err != nil {
		return nil, nil, err
	}
	return broken[:min(len(broken), diagNodes)], nil, errors.Join(b.add("fleet/explain.txt", page.Bytes()), b.add("fleet/explain.json", text.Bytes()))
}

// askNode adds the files of a node. One without a session is asked once: each request would wait for
// a session. Its error is fetch's.
func (b *bundle) askNode(ctx context.Context, api rest.Interface, node string) error {
	name := url.PathEscape(node)
	for _, f := range nodeFiles {
		f.name, f.path = path.Join("nodes", name, f.name), "/api/v1/nodes/"+name+"/proxy/"+f.path
		missing, err := b.try(ctx, api, f)
		if err != nil {
			return err
		}
		if explain.NoSession(missing, kubelet.DialFailed) {
			fmt.Fprintf(&b.summary, "nodes/%s has no other files: the node has no session\n", name)
			return nil
		}
	}
	return nil
}

// fetch adds a file, or says in the summary why it is not there. Its error is that of out, or
// that of ctx once that is canceled: nobody wants the rest.
func (b *bundle) fetch(ctx context.Context, api rest.Interface, f diagFile) error {
	_, err := b.try(ctx, api, f)
	return err
}

// try is fetch, which also returns why the file is not there.
func (b *bundle) try(ctx context.Context, api rest.Interface, f diagFile) (missing, err error) {
	fmt.Fprintln(b.show, f.name)
	bounded, cancel := context.WithTimeout(ctx, diagWait)
	defer cancel()
	read := readBounded
	if path.Base(f.name) == sessionsFile {
		read = readSessions
	}
	text, err := read(bounded, api, f)
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		b.missing++
		fmt.Fprintf(&b.summary, "%s is not here: %s\n", f.name, setup.Printable(err.Error()))
		return err, nil
	}
	if len(text) > diagItem {
		text = text[:diagItem]
		fmt.Fprintf(&b.summary, "%s is cut after %d bytes\n", f.name, diagItem)
	}
	return nil, b.add(f.name, text)
}

// readBounded reads one byte more than diagItem at most.
func readBounded(ctx context.Context, api rest.Interface, f diagFile) ([]byte, error) {
	query, err := url.ParseQuery(f.query)
	if err != nil {
		return nil, err
	}
	req := api.Get().AbsPath(f.path)
	for key, values := range query {
		req = req.Param(key, values[0])
	}
	body, err := req.Stream(ctx)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(body, diagItem+1))
	return text, errors.Join(err, body.Close())
}

// readSessions reads what the status page shows now, without the lines of the audit log.
func readSessions(ctx context.Context, api rest.Interface, f diagFile) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, sessionsTime)
	defer cancel()
	text, err := readBounded(ctx, api, f)
	if len(text) == 0 {
		return nil, err
	}
	var out bytes.Buffer
	for lines := json.NewDecoder(bytes.NewReader(text)); ; {
		line := map[string]json.RawMessage{}
		if end := lines.Decode(&line); end != nil && out.Len() == 0 {
			return nil, errors.Join(err, end)
		} else if end != nil { // or half a line
			return out.Bytes(), nil
		}
		delete(line, "audit")
		if err := json.NewEncoder(&out).Encode(line); err != nil {
			return nil, err
		}
	}
}

// add adds a file, without what looks like a secret if it is a text.
func (b *bundle) add(name string, text []byte) error {
	if ext := path.Ext(name); ext != ".gz" && ext != ".out" {
		text = redact(text)
	}
	err := b.tar.WriteHeader(&tar.Header{Name: path.Join("hawser-diag", name), Mode: 0o600, Size: int64(len(text)), ModTime: b.now})
	if err == nil {
		_, err = b.tar.Write(text)
	}
	b.files++
	return err
}

// secrets are what is taken out of texts, and what is put there.
var secrets = []struct {
	is   *regexp.Regexp
	show string
}{
	{regexp.MustCompile(`\b([a-z0-9]{6})\.[a-z0-9]{16}\b`), "$1.REDACTED"}, // a join token
	{regexp.MustCompile(`(?i)\b(bearer|basic) +[a-z0-9._~+/=-]+`), "$1 REDACTED"},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+`), "REDACTED"}, // RFC 7519
	{regexp.MustCompile(`://[^/\s"]*@`), "://REDACTED@"},                                    // user and password of a URL, or a token in their place
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|\z)`), "REDACTED"},
	// A private key as a kubeconfig has it: "-----BEGIN " in base64, and then not CERTIFICATE.
	{regexp.MustCompile(`LS0tLS1CRUdJTiB[EFPQS][A-Za-z0-9+/=_-]*`), "REDACTED"},
	// NAME=VALUE and NAME: VALUE, also in JSON, in JSON within JSON and in a URL's query.
	{regexp.MustCompile(`(?i)((?:password|passwd|secret|token|api[_-]?key|secret[_-]?access[_-]?key|client-key-data)\\*["']?\s*[:=]\s*\\*["']?)[^\s"'\\,;&{}\[\]]+`), "${1}REDACTED"},
}

var (
	// annotations are those of an object, in JSON, and annotation is one of them.
	annotations = regexp.MustCompile(`"annotations":\{(?:"(?:[^"\\]|\\.)*":"(?:[^"\\]|\\.)*",?)*\}?`)
	annotation  = regexp.MustCompile(`"((?:[^"\\]|\\.)*)":"(?:[^"\\]|\\.)*"`)
	// plain is an annotation of Kubernetes or of Hawser, but for the one with a whole manifest.
	plain = regexp.MustCompile(`^"(([a-z0-9.-]+\.)?(kubernetes|k8s)\.io|([a-z0-9.-]+\.)?hawser\.dev)/[^"/]*":`)
)

// manifestKey is where kubectl keeps what was applied.
const manifestKey = `"` + corev1.LastAppliedConfigAnnotation + `":`

// redactAnnotations takes out the values of annotations that anybody may have written.
func redactAnnotations(text []byte) []byte {
	return annotations.ReplaceAllFunc(text, func(all []byte) []byte {
		return annotation.ReplaceAllFunc(all, func(one []byte) []byte {
			if plain.Match(one) && !bytes.HasPrefix(one, []byte(manifestKey)) {
				return one
			}
			return annotation.ReplaceAll(one, []byte(`"$1":"REDACTED"`))
		})
	})
}

// redact takes out what looks like a secret.
func redact(text []byte) []byte {
	text = redactAnnotations(text)
	for _, s := range secrets {
		text = s.is.ReplaceAll(text, []byte(s.show))
	}
	return text
}
