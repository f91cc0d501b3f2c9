// hawser kubectl: the real kubectl, linked in, so that nothing need be installed.

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	_ "github.com/hawser-project/hawser/cmd/internal/language" // kubectl's texts, without a catalogue for English
)

// defaultDir is where hawser up keeps its cluster, below the working directory.
const defaultDir = ".hawser"

// noCluster is what kubectl says of a command that needs a cluster, where it knows none and
// KUBECONFIG is not set.
const noCluster = "hawser kubectl: no cluster is named: hawser up starts one in this directory, and KUBECONFIG or --kubeconfig names another"

// kubectlArgs are kubectl's arguments where a command line of hawser is one of kubectl's, or
// asks how such a one goes on. args are those of hawser.
func kubectlArgs(args []string) (forKubectl []string, ok bool) {
	switch {
	case len(args) > 0 && args[0] == "kubectl":
		return args[1:], true
	case len(args) > 1 && args[0] == "top" && (args[1] == "nodes" || args[1] == "node"):
		return args, true
	}
	return kubectlCompletion(args)
}

// runKubectl runs kubectl with args and returns its exit code.
func runKubectl(ctx context.Context, args []string) int {
	file, none := kubeconfigDefault(), noCluster
	own := args
	if i := slices.Index(args, "--"); i >= 0 { // what follows is a program's
		own = args[:i]
	}
	named := slices.ContainsFunc(own, func(arg string) bool { return strings.HasPrefix(arg, "--kubeconfig") })
	switch env := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); {
	case named:
		none = "hawser kubectl: there is no cluster in --kubeconfig, or no current-context"
	case env != "":
		none = "hawser kubectl: " + noClusterIn(env)
	}
	if file != "" {
		if err := os.Setenv(clientcmd.RecommendedConfigPathEnvVar, file); err != nil {
			return 1
		}
	}
	if err := stampVersion(); err != nil {
		fmt.Fprintln(os.Stderr, "hawser: "+err.Error())
		return 1
	}
	clientcmd.ClusterDefaults.Server = "" // or it would look for one at localhost:8080
	cmdutil.BehaviorOnFatal(func(text string, code int) {
		if strings.Contains(text, "Missing or incomplete configuration info") {
			text = none
		}
		if refused(text, file) {
			text = "hawser kubectl: the cluster of " + file + " does not run: hawser up starts it, and KUBECONFIG or --kubeconfig names another"
		}
		fmt.Fprintln(os.Stderr, strings.TrimSuffix(text, "\n"))
		os.Exit(code)
	})
	tellRefusalsOnce()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	// kubectl reads its arguments from here as well, to find plugins.
	os.Args = append([]string{"kubectl"}, args...)
	kubectl := cmd.NewDefaultKubectlCommandWithArgs(kubectlOptions(streams, os.Args))
	kubectl.SetArgs(args)
	kubectl.SetContext(ctx)
	if err := cli.RunNoErrOutput(kubectl); err != nil {
		cmdutil.CheckErr(err)
		return 1
	}
	return 0
}

// refused says whether kubectl's error is that nobody listens at the server of a kubeconfig.
func refused(text, file string) bool {
	conf, err := clientcmd.LoadFromFile(file)
	if err != nil || !strings.Contains(text, " refused") {
		return false
	}
	for _, c := range conf.Clusters {
		if u, err := url.Parse(c.Server); err == nil && u.Host != "" && strings.Contains(text, u.Host) {
			return true
		}
	}
	return false
}

// tellRefusalsOnce keeps from the log that a server refuses connections: kubectl asks several
// times for what the API has, and then its error says so.
func tellRefusalsOnce() {
	for i, tell := range utilruntime.ErrorHandlers {
		utilruntime.ErrorHandlers[i] = func(ctx context.Context, err error, msg string, keysAndValues ...any) {
			if !errors.Is(err, syscall.ECONNREFUSED) {
				tell(ctx, err, msg, keysAndValues...)
			}
		}
	}
}

func kubectlOptions(streams genericiooptions.IOStreams, args []string) cmd.KubectlOptions {
	return cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     args,
		ConfigFlags:   genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50),
		IOStreams:     streams,
	}
}

// otherCommand is a command of that name that is none of hawser's: a program, or one of
// kubectl's; or nothing.
func otherCommand(name string) string {
	if name == "agent" || name == "ccm" {
		return "hawser-" + name
	}
	for _, c := range cmd.NewKubectlCommand(kubectlOptions(genericiooptions.NewTestIOStreamsDiscard(), nil)).Commands() {
		if c.Name() == name || slices.Contains(c.Aliases, name) {
			return "hawser kubectl " + name
		}
	}
	return ""
}

// stampVersion gives kubectl a version that can be parsed where the build gave it
// none; make build does, plain go build does not.
func stampVersion() error {
	if _, err := utilversion.ParseSemantic(version.Get().GitVersion); err == nil {
		return nil
	}
	return version.SetDynamicVersion("v0.0.0-unstamped")
}

// kubeconfigDefault names the kubeconfig of a cluster started here by hawser up,
// if there is one and the environment names no other.
func kubeconfigDefault() string {
	if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "" {
		return ""
	}
	file := filepath.Join(defaultDir, adminKubeconfig)
	if _, err := os.Stat(file); err != nil {
		return ""
	}
	return file
}

// newKubectlDoc only makes kubectl show up in the help: main has already taken
// the command away when it is called.
func newKubectlDoc() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl ...",
		Short:              "The real kubectl, linked in (uses ./.hawser unless KUBECONFIG is set)",
		DisableFlagParsing: true,
		RunE:               func(*cobra.Command, []string) error { return errors.New("kubectl must be the first argument") },
	}
}
