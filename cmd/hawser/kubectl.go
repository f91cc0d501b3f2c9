// hawser kubectl: the real kubectl, linked in, so that nothing need be installed.

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/version"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
)

// defaultDir is where hawser up keeps its cluster, below the working directory.
const defaultDir = ".hawser"

// noCluster is what kubectl says of a command that needs a cluster, where it knows none.
const noCluster = "hawser kubectl: no cluster is named: hawser up starts one in this directory, and KUBECONFIG or --kubeconfig names another"

// runKubectl runs kubectl with args and returns its exit code.
func runKubectl(ctx context.Context, args []string) int {
	if file := kubeconfigDefault(); file != "" {
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
			text = noCluster
		}
		fmt.Fprintln(os.Stderr, strings.TrimSuffix(text, "\n"))
		os.Exit(code)
	})
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
