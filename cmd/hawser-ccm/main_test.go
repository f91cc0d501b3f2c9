package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/leaderelection"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/fake"
	"k8s.io/klog/v2"

	"github.com/hawser-project/hawser/cmd/internal/clitest"
	"github.com/hawser-project/hawser/controlplane/cloud/cloudtest"
)

const (
	// runEnv makes the test binary the program.
	runEnv = "HAWSER_TEST_CCM"
	// cloudEnv gives the program a fake cloud, too, and is the unix socket where tests find
	// that.
	cloudEnv = "HAWSER_TEST_CLOUD"
)

func TestMain(m *testing.M) {
	if os.Getenv(runEnv) == "" {
		os.Exit(m.Run())
	}
	if socket := os.Getenv(cloudEnv); socket != "" {
		if err := serveCloud(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	main()
}

// serveCloud makes a fake cloud known as a provider, and serves its state until the process
// ends.
func serveCloud(socket string) error {
	cloud := cloudtest.New()
	cloudprovider.RegisterCloudProvider(cloudtest.Name, func(io.Reader) (cloudprovider.Interface, error) { return cloud, nil })
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", socket)
	if err != nil {
		return err
	}
	go func() { _ = (&http.Server{Handler: cloud, ReadHeaderTimeout: time.Minute}).Serve(l) }()
	return nil
}

// kubeconfig leads nowhere.
const kubeconfig = `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {token: t}}]}`

// fails runs the program, which must end with an error, and returns the last line that it said.
func fails(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), runEnv+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("%q ended well", args)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

func TestBadInput(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	common := []string{"--kubeconfig", write("kubeconfig", kubeconfig), "--authentication-skip-lookup", "--secure-port", "0"}
	broken := write("inventory.yaml", "machines:\n- name: n-1\n- name: n-1\n")
	for want, args := range map[string][]string{
		`hawser-ccm: --cloud-provider nowhere, --cloud-config "": unknown cloud provider "nowhere"`:                                              {"--cloud-provider", "nowhere"},
		`hawser-ccm: --cloud-provider "external": name a provider, such as hawser`:                                                               {"--cloud-provider", "external"},
		broken + `": could not init cloud provider "hawser": inventory of machines ` + broken + `: line 3: machines[1].name: n-1 is there twice`: {"--cloud-config", broken},
		`hawser-ccm: --cluster-cidr "10.0.0.0": want a range, such as 10.244.0.0/16, or one of each family`:                                      {"--cluster-cidr", "10.0.0.0"},
		`err="\"nonsense\" is not in the list of known controllers"`:                                                                             {"--controllers", "cloud-node-controller,-cloud-node-lifecycle-controller,nonsense"},
		`unknown flag: --cloud`: {"--cloud", "hawser"},
	} {
		if got := fails(t, append(args, common...)...); !strings.HasSuffix(got, want) {
			t.Errorf("%q:\n%s\nwant\n%s", args, got, want)
		}
	}
	const want = `"\"nonsense\" is not in the list of known controllers"`
	if got := fails(t, "--print-config", "--controllers", "nonsense"); !strings.HasSuffix(got, want) {
		t.Errorf("--print-config: %s\nwant\n%s", got, want)
	}
}

// newRoot is newCommand for tests.
func newRoot(t *testing.T) func() *cobra.Command {
	return func() *cobra.Command {
		command, err := newCommand()
		if err != nil {
			t.Fatal(err)
		}
		return command
	}
}

func TestDocumented(t *testing.T) { clitest.Documented(t, "hawser-ccm", newRoot(t)) }

func TestManPages(t *testing.T) { clitest.ManPages(t, newRoot(t)) }

// TestTakeover: by default a replica leads in time after the leader was killed.
func TestTakeover(t *testing.T) {
	const takeover = 15 * time.Second
	command := newRoot(t)()
	duration := func(flag string) time.Duration {
		d, err := time.ParseDuration(command.Flag(flag).DefValue)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	retry := duration("leader-elect-retry-period")
	try := retry + time.Duration(leaderelection.JitterFactor*float64(retry))
	if most := try + duration("leader-elect-lease-duration") + try; most > takeover {
		t.Errorf("a takeover lasts up to %v, want %v at most", most, takeover)
	}
	if deadline := duration("leader-elect-renew-deadline"); deadline >= duration("leader-elect-lease-duration") || deadline < 2*try {
		t.Errorf("the leader gives up after %v", deadline)
	}
}

// TestNames: the program is hawser-ccm, works by a link of the name that Kubernetes' own has, and
// stands for election and serves where that does.
func TestNames(t *testing.T) {
	link := filepath.Join(t.TempDir(), "cloud-controller-manager")
	if err := os.Symlink(os.Args[0], link); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), link, "--help")
	cmd.Env = append(os.Environ(), runEnv+"=1")
	said, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(said), "\n  hawser-ccm [flags]\n") {
		t.Errorf("%v\n%s", err, said)
	}
	command := newRoot(t)()
	for flag, want := range map[string]string{
		"leader-elect-resource-name": "cloud-controller-manager", "leader-elect-resource-namespace": "kube-system", "secure-port": "10258",
	} {
		if got := command.Flag(flag).DefValue; got != want {
			t.Errorf("--%s is %q, want %q", flag, got, want)
		}
	}
}

// TestAnotherProvider: one that was made for Kubernetes' own cloud-controller-manager links
// in as it is.
func TestAnotherProvider(t *testing.T) {
	cloudprovider.RegisterCloudProvider("fake", func(io.Reader) (cloudprovider.Interface, error) { return &fake.Cloud{Provider: "fake"}, nil })
	c := (&config.Config{}).Complete()
	c.ComponentConfig.KubeCloudShared.CloudProvider.Name = "fake"
	if p := provider(c); p.ProviderName() != "fake" {
		t.Errorf("%s", p.ProviderName())
	}
	// Two that give out ranges would give one twice.
	var said bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&said)
	c.ComponentConfig.KubeCloudShared.AllocateNodeCIDRs = true
	provider(c)
	klog.Flush()
	klog.LogToStderr(true)
	if !strings.Contains(said.String(), "--allocate-node-cidrs: nothing here does; give it to hawser server, or to kube-controller-manager, and to one alone") {
		t.Errorf("%q", &said)
	}
}

// TestConfigFile: the library's flags may stand in a file, too.
func TestConfigFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ccm.yaml")
	for text, want := range map[string]string{
		"leader-elect: maybe\n":     `: line 1: leader-elect: want true or false, and not \"maybe\""`,
		"cloud-provder: hawser\n":   `: line 1: there is no flag \"cloud-provder\"; did you mean cloud-provider?"`,
		"cloud-provider: nowhere\n": `unknown cloud provider "nowhere"`,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		keys := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(keys, []byte(kubeconfig), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := fails(t, "--config", file, "--kubeconfig", keys, "--authentication-skip-lookup", "--secure-port", "0"); !strings.HasSuffix(got, want) {
			t.Errorf("%q:\n%s\nwant\n%s", text, got, want)
		}
	}
}
