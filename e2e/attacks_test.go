// Which tests show what becomes of each kind of attack.

package e2e

import (
	"go/ast"
	"strings"
	"testing"
)

// An attack is a kind of it, what becomes of it, and the tests that show it, each as
// FOLDER:NAME.
type attack struct {
	id, what, gets string
	tests          []string
}

var attacks = []attack{
	{"S1", "a certificate of another authority, one that is expired, not good yet or for servers, none", "API: 401, none 403; CONNECT and tunnel: TLS alert", []string{
		"e2e:TestThieves", "e2e:TestStrangers", "server:TestStrangersOverTLS", "tunnel/carrier:TestTicketVouchesForNothing", "tunnel/overquic:TestCertificates",
		"auth/kubeauth:TestAuthenticateCertificate", "auth/kubeauth:TestRememberedCertificateExpires",
	}},
	{"S1", "a certificate that is revoked, or of a name that another key holds", "API: 401; sessions: Denied", []string{
		"e2e:TestThieves", "e2e:TestNodeRevoked", "e2e:TestDeletedNodeStandsBack", "auth/kubeauth:TestKeyHoldsTheName", "auth/nodekeys:TestRevocation",
		"server:TestRevokedWhileParked", "cmd/hawser:TestRevokedWhileNobodyFollowed", "cmd/hawser:TestRevokedInSSHMode",
		"controlplane:TestIdentities",
	}},
	{"S1", "a serving certificate for another name", "x509 error before a byte is sent; 500", []string{
		"controlplane/apiserver/kubelet:TestLogs", "auth:TestNodeIsNoServer", "auth/pki:TestAuthoritiesAreBoundToTheirPurpose", "auth/bootstrap:TestServingCertificate",
	}},
	{"S1", "a join token that has expired, is deleted, or is shown for something else; a certificate request that is sent again", "401; 403; 409, or a certificate for the first one's key", []string{
		"e2e:TestThieves", "e2e:TestJoin", "auth/kubeauth:TestAuthenticateToken", "auth/kubeauth:TestBogusTokensCostNothing", "auth/bootstrap:TestExpiredNodeWithSpentToken",
	}},
	{"S1", "a service account's token that has ended, is of a revoked node's pod, or is another issuer's, for another audience, of a removed key", "401", []string{
		"auth/kubeauth/accounttoken:TestWrongTokens", "auth/kubeauth/accounttoken:TestEndedTokens", "auth/kubeauth/accounttoken:TestRotation",
		"controlplane:TestIdentities", "controlplane/apiserver:TestAccountTokens", "auth/kubeauth/issuers:TestNobodyOfOurs", "e2e:TestPeople",
	}},
	{"S1", "the secret of a session, shown by another node, twice, or late", "Lost, Replaced; the session stays its owner's", []string{
		"tunnel/qmux:TestSecrets", "tunnel/qmux:TestFence", "tunnel/qmux:TestJoiningRace", "tunnel/qmux:TestIdentity", "tunnel/qmux:TestAudit",
	}},
	{"S2", "an agent with another's name or address", "sessions: Denied; API: 403; addresses: no route, or Ambiguous", []string{
		"server:TestRefusedSessions", "server:TestDialByAddress", "e2e:TestThieves", "auth/kubeauth:TestClaims", "auth/kubeauth:TestNodeRestriction",
		"auth/kubeauth:TestKubernetesFacts", "auth/kubeauth:TestSecretsOfVolumes", "cmd/hawser:TestRoutesOfClaims", "auth/nodekeys:TestFirstKeyTakesTheName",
	}},
	{"S3", "a client of a front end without a certificate, or with one that is for others", "TLS alert; 403", []string{
		"e2e:TestThieves", "e2e:TestStrangers", "server/connect:TestOnlyConnectAndOnlyWhoMay", "server/connect:TestUnixSocketIsPrivate",
	}},
	{"S4", "targets on loopbacks and metadata services, by any spelling and any resolver", "CONNECT: 403, without a node 503; API proxies: 400, 404, 503", []string{
		"e2e:TestThieves", "agent:TestDecide", "agent:TestCheckResolved", "agent:TestNameThatLeadsHome", "controlplane/apiserver/kubelet:TestProxies", "controlplane/apiserver/kubelet:TestTargets", "agent:FuzzDecide",
	}},
	{"S5", "frames that are malformed, too large, in pieces or out of order", "the connection is closed and counted, the process lives", []string{
		"e2e:TestStrangers", "tunnel:TestMalformedFrames", "tunnel:TestFrameLimits", "tunnel:FuzzFrame", "tunnel/overyamux:TestUnruly", "tunnel/overyamux:TestGuardInPieces",
		"tunnel/overh2:TestUnruly", "tunnel/qmux:FuzzFrames", "tunnel/qmux:FuzzRecords", "tunnel/qmux:FuzzPeer", "tunnel/qmux:TestBrokenPeers", "tunnel/qmux:TestHostilePeers", "server:FuzzPeekHello",
		"node/kubeletapi:TestWebSocketTooMuch", "controlplane/apiserver/kubelet:TestExecWebSocketTooMuch", "auth/spdyframes:FuzzWebSocket", "auth/spdyframes:FuzzSizes",
	}},
	{"S6", "authorities that change while both count", "streams go on; what the old one signed counts until it is taken out", []string{
		"e2e:TestEveryKeyIsReplaced", "auth:TestAuthoritiesFollowFile", "auth/bootstrap:TestConnectionOfBefore", "controlplane/apiserver/kubelet:TestKeptConnectionIsVerifiedByOldAuthority", "auth:TestSupersededAuthority", "auth/pki:TestMigration", "auth/bootstrap:TestAuthoritiesAreFollowed", "auth/kubeauth:TestSupersededAuthority",
	}},
	{"S7", "10,000 slow handshakes", "closed, the source with most of them first; others are served", []string{
		"server:TestTenThousandSlowHandshakes", "cmd/internal/doorman:TestTenThousandSlowHandshakes", "tunnel/carrier:TestSlowHandshakes", "tunnel/overquic:TestHandshakesAreBounded", "server:TestSlowHellos",
	}},
	{"S8", "the number of another's session", "Denied, Lost: numbers count within an identity", []string{
		"tunnel/qmux:TestSecrets", "tunnel/qmux:TestIdentity", "tunnel/qmux:TestStrangers", "tunnel/overh2:TestSecondOfNoSession", "tunnel/overh2:TestHalves",
	}},
	{"S9", "requests that are taken back at once, and packets from an address that is not the sender's", "the connection is closed; at most three times what came, and a packet, goes back", []string{
		"cmd/internal/doorman:TestRapidReset", "tunnel/overh2:TestRapidReset", "e2e:TestStrangers", "tunnel/overquic:TestAmplification",
	}},
}

// TestAttacks keeps the index and the tests together.
func TestAttacks(t *testing.T) {
	there := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.syntax.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.isTest() {
				there[s.dir()+":"+f.Name.Name] = true
			}
		}
	}
	for _, a := range attacks {
		if a.what == "" || a.gets == "" || len(a.tests) == 0 {
			t.Errorf("%s %q: says too little", a.id, a.what)
		}
		for _, name := range a.tests {
			if !there[name] {
				t.Errorf("%s %s: there is no %s", a.id, a.what, strings.Replace(name, ":", ": ", 1))
			}
		}
	}
}
