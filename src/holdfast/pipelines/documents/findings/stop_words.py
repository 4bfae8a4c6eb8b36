"""The words that carry no subject of their own, language by language.

They part the key phrases of a text from one another, they tell the language it is in, and a phrase may hold a
few of them in its middle ("cost of goods"). Verbs that every report uses stand here too: "shows", "gemäß".
"""

from __future__ import annotations

from holdfast.pipelines.documents.findings.word_lists import word_set

_ENGLISH = """
appoint appoints appointed bear bears calculate calculated complete completed comply confirm confirmed
consider considered cover covers covered create created decide decided define defined describe described
determine determined develop developed employ employs employed ends ended exist exists explain explained
granted happen happened incorporated indicate indicates inform informed introduce introduced invest invested
join joined launch limited maintain maintained notify notified offered open opened operate operated planned
prepare prepared presented propose proposed proposes publish published raised refer refers registered relate
relates replace replaced respond return returned select selected serve served serves sign signed signs
specify specified submit submitted suggest suggests terminate terminated treat treated won worked write a
about above according across actual actually add added after again against ago all allow allowed allows
almost alone along already also although always am among an and another any anyone anything appear appears
apply applies applied are around as ask asked at available away back based be became because become becomes
been before began begin behind being below best better between both bring brought but by call called came
can cannot carry carried cause certain certainly clear clearly come comes could current currently day days
dear did different directly do does doing done down due during each early easily either else enough entire
especially etc even ever every everyone everything example except far few fewer find finds first five follow
following follows for former forth found four from full fully further furthermore gave generally get gets
give given gives go goes going gone good got great had half hardly has have having he held help hence her
here hereby herein hereinafter hereof hereto hereunder hers herself high higher him himself his hold how
however i if ii iii immediately important in include included includes including increase increased
increases indeed instead into is it its itself iv just keep kept kind knew know known large largely larger
last late later latter least led left less let like likely little long longer look looks lot low lower made
mainly make makes making many may maybe me mean means meanwhile meet might mine more moreover most mostly
move much must my myself namely near nearly necessary need needed needs neither never nevertheless new next
nine no nobody none nor not note noted nothing now number of off often old on once one ones only onto or
other others otherwise ought our ours ourselves out over overall own part particular particularly past pay
per perhaps please possible provide provided provides providing pursuant put quite rather read really recent
recently reach reached regarding regards related remain remained remains report reported reports require
required requires respect respectively result resulted results right rose run said same saw say says second
see seem seems seen seven several shall she should show showed shown shows similar simply since six small so
some somebody someone something sometimes soon start started state stated states still stood subject such
sure take taken takes taking tell ten than thank thanks that the their theirs them themselves then there
thereafter thereby therefore therein thereof thereto these they thing things think third this those though
three through throughout thus time times to today together told too took toward towards try turn two type
under unless unlike until up upon us use used uses using usual usually various very via view want was way
ways we well went were what whatever when where whereas whereby wherein whether which while who whole whom
whose why wide will wish with within without word would year years yes yet you your yours yourself
yourselves agree agreed agrees set sets enter entered entering stay grew grow grows growing fell fall falls
expect expected expects improve improved continue continued continues consist consists lead leads undertake
undertakes deliver delivers delivered ensure ensures receive received receives begins send sent contain
contains reduce reduced written wrote buy bought sell sold support supported supports january february march
april june july august september october november december monday tuesday wednesday thursday friday saturday
sunday jan feb mar apr jun jul aug sep sept oct nov dec page pages percent cent million billion thousand mr
mrs ms dr inc ltd email tel fax www http https com org net paid pays lost met spent built chose heard knows
leaves leaving sat sees stands stopped tried turned understood walked wanted wants works believes believed
thinks thought happens adds asks claimed claims decides explains helps helped hopes moved notes pointed
rises fallen risen reaches shared tested worth
"""

_GERMAN = """
cent gmbh ag kg
ab aber alle allein allem allen aller allerdings alles als also alt am an andere anderem anderen anderer
anderes anders anhand auch auf aufgrund aus ausser außer außerdem außerhalb bald bei beide beiden beider
beim beispiel bereits besonders bestimmt bestimmte bestimmten betrifft betreffend bezüglich bin bis bisher
bitte bleiben bleibt bzw da dabei dadurch dafür dagegen daher dahin damals damit danach daneben dank dann
daran darauf daraus darf darin darüber darum darunter das dass daß davon davor dazu dein deine dem demnach
den denen denn dennoch der deren derer des deshalb dessen desto deutlich dich die dies diese dieselbe diesem
diesen dieser dieses dir doch dort du durch dürfen eben ebenfalls ebenso eher eigen eigene eigenen ein eine
einem einen einer eines einige einigen einiger einmal einschließlich einzelne einzelnen entsprechend
entsprechende er erfolgt erfolgen erhalten erhält erst erste ersten es etwa etwas euch euer eure falls fast
ferner folgen folgende folgenden folgendes folgt früher für ganz ganze gab geben gegen gegenüber gehen
gehört gemacht gemäß genau genug geworden gibt ging gut guten hab habe haben haltet hält handelt hat hatte
hatten heute hier hierbei hiermit hierzu hin hinaus hinter hinweis ich ihm ihn ihnen ihr ihre ihrem ihren
ihrer ihres im immer in indem infolge innerhalb insbesondere insgesamt inzwischen ist ja je jede jedem jeden
jeder jederzeit jedes jedoch jemand jene jetzt kann kein keine keinem keinen keiner keines kommen kommt
können könnte könnten kurz lange lassen lässt laut lediglich leicht letzte letzten liegen liegt machen macht
man mehr mehrere mein meine meinem meinen meiner meist mich mindestens mir mit mittels möchte möchten
möglich muss müssen muß nach nachdem nächste nämlich natürlich neben nehmen nein neu neue neuen neuer nicht
nichts nie noch nun nur ob oben obwohl oder oft ohne per pro rund sagen schon sehr sei seien sein seine
seinem seinen seiner seines seit sich sicher sie sind so sobald sofern sofort sogar solche solchen solcher
soll sollen sollte sollten somit sondern sonst soweit sowie sowohl später stark stehen steht stellen stellt
stets trotz über überhaupt um und uns unser unsere unserem unseren unserer unter usw vereinbart verwendet
viel viele vielen vom von vor vorher war waren warum was weder wegen weil weit weiter weitere weiteren
weiterhin welche welchem welchen welcher welches wenig wenige weniger wenn wer werden weshalb wie wieder
will wir wird wirklich wo wobei wodurch wohl wollen worden wurde wurden während würde würden z zu zudem
zuerst zufolge zum zunächst zur zusammen zwar zwei zwischen zwölf drei vier fünf sechs sieben acht neun zehn
geehrte geehrter geehrten herr herrn frau damen herren freundlichen freundliche grüßen mio mrd euro prozent
seite telefon jahr jahre jahren tag tage tagen monat monate monaten uhr bedanken danken senden erhalten
teilen hiermit übersenden leisten zahlen betragen beträgt stieg steigen sank nahm januar februar märz april
mai juni juli august september oktober november dezember montag dienstag mittwoch donnerstag freitag samstag
sonntag
"""

_FRENCH = """
a à afin ai ainsi ait alors après assez au aucun aucune aujourd auprès auquel aussi autant autre autres aux
auxquels avaient avait avant avec avez avoir avons ayant beaucoup bien bon bonne car ce ceci cela celle
celles celui cependant certain certaine certaines certains ces cet cette ceux chacun chacune chaque chez ci
ci-après ci-dessous ci-dessus comme comment compris contre d dans de depuis derrière des dès deux devant
devrait doit doivent donc dont du durant elle elles en encore enfin ensuite entre environ es est et étaient
était étant été être eu eux fait faire font fois grâce hors ici il ils je jour jours jusqu jusque l la là
laquelle le lequel les lesquelles lesquels leur leurs lors lorsque lui m ma mais mal malgré me même mêmes
mes mettre mieux mis mise moi moins mois mon n ne ni nos notamment notre nous nouveau nouveaux nouvelle
nouvelles on ont ou où par parce pareil parmi pas pendant permet peu peut peuvent plus plusieurs plutôt
point pour pourquoi pourra pourrait pouvoir premier première près prévu prévue présent présente puis puisque
qu quand quant que quel quelle quelles quelque quelques quels qui quoi rien s sa sans sauf se selon sera
seront ses seul seule seulement si sien soit son sont sous souvent suite suivant suivante suivantes suivants
sur t ta tandis tant tel telle telles tels tes toi ton toujours tous tout toute toutefois toutes très trois
trop tu un une vers via voici voilà vos votre vous vu y ans année années quatre cinq six sept huit neuf dix
monsieur madame messieurs mesdames veuillez agréer salutations cordialement merci page article janvier
février mars avril mai juin juillet août septembre octobre novembre décembre lundi mardi mercredi jeudi
vendredi samedi dimanche
"""

_SPANISH = """
adelante a ahora al algo alguna algunas alguno algunos ambos ante anterior antes aquel aquella aquellas
aquello aquellos aquí así aun aún aunque bajo bien cada casi cerca como cómo con conforme contra cual cuales
cualquier cuando cuanto cuya cuyo da dado de debe deben debido decir dentro desde después dicha dicho dichos
donde dos durante e el él ella ellas ello ellos embargo en encima entonces entre era eran eres es esa esas
ese eso esos esta está estaba están estar estas este esto estos estoy fecha fin fue fueron fuera gran ha
haber había habían hace hacer hacia han hasta hay he hemos hizo hoy igual incluso junto la las le les lo los
luego más me mediante mejor menos mi mientras mis misma mismas mismo mismos momento mucha muchas mucho
muchos muy nada ni ningún ninguna no nos nosotros nuestra nuestras nuestro nuestros nueva nuevas nuevo
nuevos nunca o otra otras otro otros para parte pero poco podrá puede pueden pues por porque primer primera
primero pueda que qué quien quienes realizar respecto sea sean según ser será serán si sí sido siempre
siendo sigue siguiente siguientes sin sino sobre sólo solo son su sus tal también tampoco tan tanto te
tendrá tener tiene tienen toda todas todavía todo todos total tras través tres tu tú tus un una unas uno
unos usted ustedes va vez veces y ya yo año años día días mes meses cuatro cinco seis siete ocho nueve diez
señor señora estimado estimada atentamente saludos gracias página enero febrero marzo abril mayo junio julio
agosto septiembre octubre noviembre diciembre lunes martes miércoles jueves viernes sábado domingo
"""

_ITALIAN = """
a ad agli ai al alla alle allo altra altre altri altro anche ancora avere aveva c che chi ci ciò col come
con contro così cui da dagli dai dal dalla dalle dallo degli dei del della delle dello dentro di dopo dove
due e è ed entro era erano essere fa fino fra già gli ha hanno i il in io la le lei li lo loro lui ma me
mediante meno mentre mi mio molti molto ne negli nei nel nella nelle nello no noi non nostra nostro o ogni
oltre per perché però più poi presso prima può qual quale quali quando quanto quella quelle quelli quello
questa queste questi questo qui se secondo sempre senza si sia siano solo sono sopra sotto sta stata stati
stato su sua sue sugli sui sul sulla sulle suo suoi tra tre troppo tutta tutte tutti tutto un una uno verso
vi via voi anno anni giorno giorni mese gennaio febbraio marzo aprile maggio giugno luglio agosto settembre
ottobre novembre dicembre
"""

_DUTCH = """
aan al alle als andere bij binnen daar dan dat de deze die dit doen door dus een en er geen had hebben heeft
het hier hij hoe hun ik in indien is je kan kunnen maar mag me meer men met mijn moet moeten na naar niet
niets nog nu of om omdat ons onder onze ook op over reeds te tegen ten ter tijdens toch toen tot tussen u
uit uw van veel volgens voor waar was wat we wel werd werden wij wie wordt worden zal ze zeer zich zij zijn
zo zoals zonder zou jaar jaren januari februari maart april mei juni juli augustus september oktober
november december
"""

_PORTUGUESE = """
a à ao aos aquela aquele as às até cada com como contra da das de dela dele depois desde do dos durante e é
ela elas ele eles em entre era essa esse esta está estão este eu foi foram há isso isto já lhe mais mas
mesma mesmo meu muito na nas não nem no nos nossa nosso num numa o onde os ou para pela pelas pelo pelos por
porque qual quando que quem se seja sem ser será seu seus só sobre sua suas também tem têm todo todos toda
um uma umas uns você ano anos dia janeiro fevereiro março abril maio junho julho agosto setembro outubro
novembro dezembro
"""

STOP_WORDS: dict[str, frozenset[str]] = {
    language: word_set(words)
    for language, words in {
        "en": _ENGLISH,
        "de": _GERMAN,
        "fr": _FRENCH,
        "es": _SPANISH,
        "it": _ITALIAN,
        "nl": _DUTCH,
        "pt": _PORTUGUESE,
    }.items()
}

# Those by which a language is told: short, frequent, and shared with few others.
TELLING_WORDS: dict[str, frozenset[str]] = {
    "en": word_set("the of and to is for that with by this are from shall which will be was"),
    "de": word_set("der die das und ist nicht von mit für auf dem den ein eine des zu wird sich bei"),
    "fr": word_set("le les des et est une du dans pour que qui sur par au aux ce cette sont avec"),
    "es": word_set("el los las y es del una que por para con se su al como más esta este"),
    "it": word_set("il di che e è della per con sono dei nel alla gli una del non si"),
    "nl": word_set("het een van en de is dat op te zijn voor met niet aan wordt bij"),
    "pt": word_set("o os que e do da em um uma para com não por são dos das ao se"),
}

# What may stand between two words of one phrase.
CONNECTORS: dict[str, frozenset[str]] = {
    "en": frozenset({"of"}),
    "fr": frozenset({"de", "du", "des", "d"}),
    "es": frozenset({"de", "del"}),
    "it": frozenset({"di", "del", "della"}),
    "pt": frozenset({"de", "do", "da"}),
}
