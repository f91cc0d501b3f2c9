// Shell completion: names that the cluster has, and kubectl's own.

package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/hawser-project/hawser/cmd/fleet"
)

const (
	// completeWait bounds the wait for the cluster: somebody has pressed a key.
	completeWait = 2 * time.Second
	// completePage is how many objects are asked for at a time.
	completePage = 500
)

// flagValues are those of flags that take one of a few: see setup.CompleteValues. A flag that is no
// more has none.
var flagValues = map[string][]string{
	"cloud-provider":                   {},
	"log-format":                       {"text", "json"},
	"hawser explain dial output":       {"json"},
	"hawser explain fleet output":      {"json"},
	"hawser explain node output":       {"json"},
	"hawser fleet transport":           {"qmux", "quic", "yamux", "h2"},
	"hawser fleet weight":              {string(fleet.Light), string(fleet.Full)},
	"hawser manifest egress transport": {viaUDS, viaMTLS},
	"hawser manifest egress protocol":  {protoConnect, protoGRPC},
}

// kubectlCompletion are kubectl's arguments where a shell asks how a line of hawser kubectl
// goes on. args are those of hawser.
func kubectlCompletion(args []string) (forKubectl []string, ok bool) {
	asked := len(args) > 2 && (args[0] == cobra.ShellCompRequestCmd || args[0] == cobra.ShellCompNoDescRequestCmd)
	if !asked || args[1] != "kubectl" {
		return nil, false
	}
	return append([]string{args[0]}, args[2:]...), true
}

// completeNames offers the names that list finds in the cluster of a kubeconfig, at most most
// of them in one line; zero means any number. A cluster that does not answer offers none.
func completeNames(kubeconfig *string, most int, list func(context.Context, kubernetes.Interface) ([]string, error)) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) (found []cobra.Completion, _ cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeWait)
		defer cancel()
		err := withClient(ctx, *kubeconfig, func(ctx context.Context, client kubernetes.Interface, _ *rest.Config) error {
			names, err := list(ctx, client)
			for _, name := range names {
				if strings.HasPrefix(name, typed) && !slices.Contains(args, name) {
					found = append(found, name)
				}
			}
			return err
		})
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		return found, cobra.ShellCompDirectiveNoFileComp
	}
}

// nodeNames are the names of all nodes, as far as they are known when ctx is done.
func nodeNames(ctx context.Context, client kubernetes.Interface) (names []string, _ error) {
	for opts := (metav1.ListOptions{Limit: completePage}); ; {
		page, err := client.CoreV1().Nodes().List(ctx, opts)
		if err != nil {
			return names, err
		}
		for i := range page.Items {
			names = append(names, page.Items[i].Name)
		}
		if opts.Continue = page.Continue; opts.Continue == "" {
			return names, nil
		}
	}
}

// tokenIDs are the ids of join tokens.
func tokenIDs(ctx context.Context, client kubernetes.Interface) (ids []string, _ error) {
	page, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		Limit: completePage, FieldSelector: fields.OneTermEqualSelector("type", string(bootstrapapi.SecretTypeBootstrapToken)).String(),
	})
	if err != nil {
		return nil, err
	}
	for i := range page.Items {
		if id, ok := strings.CutPrefix(page.Items[i].Name, bootstrapapi.BootstrapTokenSecretPrefix); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// completeDial offers nodes, whose port is yet to be typed.
func completeDial(kubeconfig *string) cobra.CompletionFunc {
	nodes := completeNames(kubeconfig, 1, nodeNames)
	return func(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		found, directive := nodes(cmd, args, typed)
		for i := range found {
			found[i] += ":"
		}
		return found, directive | cobra.ShellCompDirectiveNoSpace
	}
}
